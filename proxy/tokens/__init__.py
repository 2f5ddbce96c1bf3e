"""Token counting engines and vocabularies: CPU and disk, no network."""
