"""One file per verb: options in, phases or reads run, text or JSON out."""
