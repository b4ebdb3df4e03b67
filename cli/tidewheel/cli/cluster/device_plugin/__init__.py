"""Simulated GPUs: a real device plugin for devices that do not exist."""
