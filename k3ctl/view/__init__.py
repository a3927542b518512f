"""What people and programs read: live console, plain lines, JSON."""
