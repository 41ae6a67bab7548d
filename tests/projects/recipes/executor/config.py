"""The configuration of a run: what the YAML says, and defaults for what it leaves out."""

from dataclasses import dataclass, field


@dataclass
class ModelConfig:
    """Settings of the model; keys that it does not name are dropped."""

    exe_mode: str = "eager"
    next_n: int = 0
    custom_params: dict = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values):
        """Read the part ``model_config`` of the YAML."""
        return cls(
            exe_mode=values.get("exe_mode", "eager"),
            next_n=values.get("next_n", 0),
            custom_params=values.get("custom_params", {}),
        )


@dataclass
class InferenceConfig:
    """All settings."""

    model_config: ModelConfig

    @classmethod
    def from_dict(cls, values):
        """Read the YAML."""
        return cls(ModelConfig.from_dict(values.get("model_config", {})))


@dataclass
class ForwardMetaData:
    """What a step is given beside its tokens."""

    is_prefill: bool = False
