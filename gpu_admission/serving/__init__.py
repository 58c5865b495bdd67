"""For the app behind: helpers around the model call, none of them required."""
