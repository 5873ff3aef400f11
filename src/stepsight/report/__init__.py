"""A prediction as people read it: tables, JSON, a Perfetto timeline, a page."""
