"""The app `scripted_resumable`."""

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from scripted_model import Scripted, tools

root_agent = LlmAgent(name="scripted", model=Scripted(), instruction="Play.", tools=tools)
app = App(
    name="scripted_resumable",
    root_agent=root_agent,
    resumability_config=ResumabilityConfig(is_resumable=True),
)
