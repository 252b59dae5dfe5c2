"""Campaigns: many seeded tries of one kind of trouble, each with a figure. See docs/reliability.md."""
