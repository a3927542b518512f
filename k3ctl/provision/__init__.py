"""What provisioning gives the roles, compiled from the plan; pure."""
