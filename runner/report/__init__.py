"""Run folders -> what people look at. Reads files only; torch is never imported here."""
