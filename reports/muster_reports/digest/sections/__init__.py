"""The digest's sections: each module here has ``ORDER``, ``TITLE`` and ``section(facts)``, which returns None to be
left out."""
