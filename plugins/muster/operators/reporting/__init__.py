"""What people read of a run: mails, notifications, the archive of reports, the run's note."""
