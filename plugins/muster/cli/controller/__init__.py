"""The controller: what it needs, its database, its settings, its mails."""
