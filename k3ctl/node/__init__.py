"""What runs on the nodes: standard library only, Python 3.8 and newer, shipped as one zipapp."""
