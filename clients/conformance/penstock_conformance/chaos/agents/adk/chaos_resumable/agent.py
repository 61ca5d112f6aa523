"""The app `chaos_resumable`."""

from chaos_script_model import Scripted, effect
from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig

root_agent = LlmAgent(name="chaos", model=Scripted(), instruction="Play.", tools=[effect])
app = App(
    name="chaos_resumable",
    root_agent=root_agent,
    resumability_config=ResumabilityConfig(is_resumable=True),
)
