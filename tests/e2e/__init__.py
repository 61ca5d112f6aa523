"""Tests of whole systems. The package ends the deployment that its tests share."""
