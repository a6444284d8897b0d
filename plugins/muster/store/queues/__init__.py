"""What waits to be delivered: mails, notices, events for the audit stream, changes of schedulers."""
