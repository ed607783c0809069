import pytest

from nemo_rl.utils.tiny_model import make_tiny_model, make_tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return make_tiny_tokenizer()


@pytest.fixture
def model_folder(tmp_path):
    folder = tmp_path / "model"
    make_tiny_model(folder, num_hidden_layers=1)
    return folder
