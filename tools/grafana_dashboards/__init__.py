"""The dashboards of deploy/grafana, generated from the panels that are declared here."""
