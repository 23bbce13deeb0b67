"""Who may connect and what they may do: key stores, certificates, credentials, authorization."""
