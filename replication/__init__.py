"""An ordered log of opaque bytes, replicated by Raft. Knows no jobs; sole importer of pysyncobj."""
