"""Commands about the controller: its records, its settings, its mails."""
