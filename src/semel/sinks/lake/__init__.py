"""What sinks of lake tables share: tables that hold the ledger themselves, one version after the
other, each made by one commit."""
