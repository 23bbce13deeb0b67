"""The page of transactions: open ones with the oldest first, and the search for hanging ones."""

from __future__ import annotations

from starlette.responses import Response

from tidelog.console.api import parse_query
from tidelog.console.api_transactions import HangingQuery, TransactionsQuery, hanging_list, transaction_list
from tidelog.console.errors import ApiError
from tidelog.console.pages import NavItem, Page, View


async def transactions_page(view: View) -> Response:
    query: TransactionsQuery = parse_query(TransactionsQuery, view.request)
    found = await transaction_list(view.cluster, query)
    return view.render("transactions/transactions.html", found=found, query=query)


async def hanging_page(view: View) -> Response:
    query: HangingQuery = parse_query(HangingQuery, view.request)
    found, problem = None, ""
    if "minutes" in view.query:
        try:
            found = await hanging_list(view.cluster, query)
        except ApiError as error:
            problem = error.message
    return view.render("transactions/hanging.html", found=found, query=query, problem=problem)


NAV = (NavItem("transactions", "Transactions", "/transactions", "x"),)
PAGES = (
    Page("/transactions", transactions_page, action="transaction.view"),
    Page("/transactions/hanging", hanging_page, action="transaction.view"),
)
