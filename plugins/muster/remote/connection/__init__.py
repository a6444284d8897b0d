"""How the controller speaks to a node: login, SSH and HTTP, each limited in time and size."""
