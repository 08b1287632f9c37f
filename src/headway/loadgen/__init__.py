"""Load for any server, and what is learned from it: `headway bench`. No server imports it."""
