"""What our programs share to talk to Kubernetes: client, reflector, Events, logs."""
