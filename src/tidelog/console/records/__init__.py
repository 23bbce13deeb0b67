"""Records as a person sees them: read, decoded, masked, filtered, counted, exported. No HTTP."""
