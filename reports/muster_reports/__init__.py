"""What people read: mails, pages and charts. Renders; decides nothing."""
