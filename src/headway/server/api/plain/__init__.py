"""What the plain route takes and gives beside JSON: uploads, files as answers, events."""
