"""The agent over real sockets, against a scripted controller and a scripted or real keeper."""
