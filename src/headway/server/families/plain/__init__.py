"""The plain route, `/v1/predict/{model}`: JSON, uploads, files as answers, events."""
