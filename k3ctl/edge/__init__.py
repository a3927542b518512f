"""The only input/output of the controller: SSH, Ansible, HTTP, files, clock."""
