"""The digest's sections: each module here has ``ORDER`` and ``section(facts)``, which returns None to be left out.

One whose section gives ``behind`` has its title in ``TITLE``.
"""
