"""Passwords in the tree: texts that Kafka 3.9 wrote are read, ours are random and need the secret."""

from __future__ import annotations

import pytest

from tidelog.security.password_encoder import CBC, GCM, NotDecodable, PasswordEncoder, is_encoded

# Written by kafka-configs of Kafka 3.9.2 with --zookeeper and password.encoder.secret.
OF_KAFKA = {
    (
        "encoder-secret",
        "1234567890123456",
    ): "initializationVector:LQkfUUD/uCIpR+8elnVLoQ==,keyLength:128,salt:M92+wuvI29zlGGwYcfw8T5x6fZIxVHMyTVGlUaiEbuCVhO2oVLoZQgUPGfrNuyik32+waj50L5xprRfxuUZPnoyRyMSwVtkls2fOgdDzDY8H1uYLMpbJ0u3uErCCT7uT91ebhqIohvQyjKM7oP9UHZyZaXxGDPWOeldegtrqd6/T73PfZw6I0VbhJaE2bp8g1W+QZe79EpbJnlFw+ZmriQDmgOIz7alEbBDQDcjL6zMlBknGew5oKoDk/l8k7vbWZxopR1trqYhr0+Bb0T28X4rGNoahwvlifNLSauY6SYn74nO7wuEk8sbBCzQwIRINpejVT2Qa+UVs9z5Tpgyz9w==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:16,encryptedPassword:o2GcrfQPbVOJTOnwKD4tcpMk4dSVBWbPz1Gx8ymEx4o=",  # noqa: E501
    (
        "other",
        "x",
    ): "initializationVector:eHcBugyMRnR1g7R8,keyLength:256,salt:zKBJwI/kn3XYtU6+nv3cj9/NNwixkqLYcAnI9igN35bAbJUKykPGXTgi+Tlm2/VhauY+WpoXPsmQHFcS7OR7vuUTW2UdfLAnkf3JcNdMo5HVRtaxLWfzx8cd6gWIzu4DoKrVVbA5LwcNat35Pak3KyTBy9c6QMxU4YRq1sStr/fG6opDyQcYXqnvKYB75KWfjIpetijScp1RVOJYDKxaw2MjNeoFcON+H3hQ6yVFKNArIDEveExp6XyxVRuY/5jTnm6sepekDgAE6OSj5X8cIFYTeOMj5pmnq7q9zfeHkFTn6xwoxaBRD3ZiOfFB/rOLx02+Bi0bCg7oYvZUByxGbQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength:128,iterations:5000,passwordLength:1,encryptedPassword:nwC2Q39xH7v1rp92GfkCrNU=",  # noqa: E501
}


@pytest.mark.parametrize(("secret", "password"), OF_KAFKA)
def test_texts_of_kafka_are_read_with_the_secret_alone(secret: str, password: str) -> None:
    text = OF_KAFKA[secret, password]
    assert is_encoded(text)
    assert PasswordEncoder(secret).decode(text) == password
    assert PasswordEncoder("new", old_secret=secret).decode(text) == password
    with pytest.raises(NotDecodable):
        PasswordEncoder("wrong").decode(text)


@pytest.mark.parametrize("cipher", [CBC, GCM])
@pytest.mark.parametrize("password", ["", "p", "sixteen bytes ok", "pässword,with:marks", "long" * 1000])
def test_what_is_written_is_read_again_and_never_the_same(cipher: str, password: str) -> None:
    encoder = PasswordEncoder("secret", cipher=cipher, key_bits=256, iterations=1024)
    one, two = encoder.encode(password), encoder.encode(password)
    assert one != two
    assert is_encoded(one)
    assert password == "" or password not in one or len(password) == 1
    assert encoder.decode(one) == encoder.decode(two) == password
    assert PasswordEncoder("secret").decode(one) == password


@pytest.mark.parametrize(
    "text", ["", "plain password", "a:b,c:d", "iterations:4096,keyLength:128,salt:!,x:y"]
)
def test_other_texts_are_no_encoded_passwords(text: str) -> None:
    assert not is_encoded(text)
    with pytest.raises(NotDecodable):
        PasswordEncoder("secret").decode(text)


@pytest.mark.parametrize("name", ["iterations", "keyLength", "cipherAlgorithm", "encryptedPassword", "salt"])
def test_a_damaged_text_is_refused(name: str) -> None:
    parts = dict(
        part.partition(":")[::2] for part in PasswordEncoder("s", iterations=1024).encode("p").split(",")
    )
    for damaged in ("", "0", "-1", "999999999999", "AAAA", "x"):
        text = ",".join(f"{key}:{damaged if key == name else value}" for key, value in parts.items())
        with pytest.raises(NotDecodable):
            PasswordEncoder("s").decode(text)


def test_the_secret_is_not_shown() -> None:
    assert "topsecret" not in repr(PasswordEncoder("topsecret"))
