"""A small Kubernetes without containers. It runs the Deployments of the chart as processes.

`chart` reads a rendering, `pods` is the kubelet, `deployments` is the controller of Deployments,
`services` forwards connections to the pods that are ready, and `rolling` plays a round of rollouts.
"""
