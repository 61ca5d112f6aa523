"""The app `scripted`."""

from google.adk.agents import LlmAgent
from scripted_model import Scripted, tools

root_agent = LlmAgent(name="scripted", model=Scripted(), instruction="Play.", tools=tools)
