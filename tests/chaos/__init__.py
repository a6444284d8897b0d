"""A torture campaign: faults drawn from a seed strike a fleet while its nodes live through their tests.

``python -m tests.chaos --faults N --seed S [--minutes M] [--resume FOLDER]``

Real: Airflow on Celery with Redis and PostgreSQL (two workers, two triggerers), Slurm with a slurmd a node, the API
server of Kubernetes with etcd for every third node (where it is built), an SSH server a node, the node side, the judge,
an emulated BMC (sushy-tools), SMTP, the audit stream over HTTP. Simulated: the hardware. Each stage asks only what GPUs
a node has, so that hundreds of lives fit into hours; a faulty machine lacks a GPU.

- ``world``: starts all of it, and restarts what ended, as systemd would. ``link`` stands between the controller and
  each node, its BMC, the API server, the mail server and the audit receiver, and refuses, hangs, slows or breaks
  connections.
- ``lives``: one life of a node is qualification, validation in a block of two at times (where this interpreter has
  PyTorch), a person's admission and a revalidation, and at times a GPU that fails in service and is repaired; or a
  quarantine that its machine deserves. Then a person returns it, its machine is built again, healthy or not, and the
  next life begins.
- ``faults``: one function a kind, a generator that strikes, yields what it struck, and lifts the fault. A new kind is
  one function in ``controller``, ``services``, ``nodes`` or ``people``.
- ``observers``: pure functions from evidence to the defects that they find, of so many that they examined; ``evidence``
  reads it with none of Muster's code: the nodes' diaries, the mail sink's folder, the receiver's lines, SQL, psutil,
  and ``schedulers``: ``scontrol`` and the API server.

When time is up no fault is left and the fleet is given time to settle; what is wrong then, or was at any sample of
a scheduler, counts. A run that a person of the campaign cleared, failed or deleted is not blamed for what it lost.

A campaign is a series of legs of ``LEG_MINUTES`` at most, each a fleet of its own with a seed of its own; FOLDER keeps
the figures of each leg, so that an interrupted campaign goes on after its last complete one.

Of a second controller (``second``) Muster promises that no node is tested twice at once, admitted or condemned wrongly,
or held for ever; not that neither of the two ends the other's tests. Of a restored back-up it promises the same. What
was recorded since the back-up may be lost, results and mails, and mails that were sent since may come once more: those
that the replaced records had, and no others. Nodes that restored records do not open wait for a person's decision.

Left out: of Kubernetes its scheduler and kubelets, so that users' pods are bound directly and run nothing, and tests of
nodes in service close them.
"""
