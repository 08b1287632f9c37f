"""What is made of the runtime's events: metrics, traces, logs. It watches; it never acts."""
