"""The lab's hub: serves model repositories over the Hugging Face HTTP protocol, with faults on demand.

`python -m k3ctl.lab.hub --data DIR --host ADDR --port N` starts it. Nothing here is needed on real clusters.
"""
