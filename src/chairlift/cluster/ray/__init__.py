"""Replicas as Ray actors: one named, detached actor and one placement group for each; nothing else imports ray."""
