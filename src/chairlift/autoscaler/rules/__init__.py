"""Rules of target tracking: each computes from one signal how many replicas the load needs."""
