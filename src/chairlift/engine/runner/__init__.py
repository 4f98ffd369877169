"""Runner: the protocol between the engine loop and the model, a thread around a runner, and a fake runner."""
