"""The pages of ACLs by principal, quotas and SCRAM users."""

from __future__ import annotations

from itertools import groupby

from starlette.responses import Response

from tidelog.console.api import parse_query
from tidelog.console.api_security import QUOTA_KEYS, AclsQuery, acl_list, quota_list, user_list
from tidelog.console.pages import NavItem, Page, View
from tidelog.security.acl import OPERATION_OF_TITLE, RESOURCE_TYPE_OF_TITLE

TABS = (("acls", "ACLs"), ("quotas", "Quotas"), ("users", "SCRAM users"))


async def acls_page(view: View) -> Response:
    query: AclsQuery = parse_query(AclsQuery, view.request)
    found = await acl_list(view.cluster, query.search)
    principals = [(name, list(rules)) for name, rules in groupby(found.rules, lambda rule: rule.principal)]
    return view.render(
        "security/acls.html",
        found=found,
        principals=principals,
        query=query,
        tabs=TABS,
        resources=list(RESOURCE_TYPE_OF_TITLE),
        operations=list(OPERATION_OF_TITLE),
    )


async def quotas_page(view: View) -> Response:
    found = await quota_list(view.cluster)
    return view.render("security/quotas.html", found=found, tabs=TABS, keys=QUOTA_KEYS)


async def users_page(view: View) -> Response:
    return view.render("security/users.html", found=await user_list(view.cluster), tabs=TABS)


NAV = (NavItem("security", "Security", "/security/acls", "s"),)
PAGES = (
    Page("/security/acls", acls_page, action="acl.view"),
    Page("/security/quotas", quotas_page, action="quota.view"),
    Page("/security/users", users_page, action="user.view"),
)
