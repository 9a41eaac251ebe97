# The one codec that an interpreter cannot start without. CPython's own codecs are in an archive, and reading its directory
# takes a third of the start. So this module replaces them until another codec, or anything else of theirs, is needed.
import codecs, sys

_ARCHIVE = next(path for path in sys.path if path.endswith(".zip"))
__path__ = [_ARCHIVE + "/encodings"]


class _Encoder(codecs.IncrementalEncoder):
    def encode(self, input, final=False):
        return codecs.utf_8_encode(input, self.errors)[0]


class _Decoder(codecs.BufferedIncrementalDecoder):
    _buffer_decode = codecs.utf_8_decode


class _Writer(codecs.StreamWriter):
    encode = codecs.utf_8_encode


class _Reader(codecs.StreamReader):
    decode = codecs.utf_8_decode


def _decode(input, errors="strict"):
    return codecs.utf_8_decode(input, errors, True)


_UTF_8 = codecs.CodecInfo(codecs.utf_8_encode, _decode, _Reader, _Writer, _Encoder, _Decoder, name="utf-8")


def _find(name):
    return _UTF_8 if name in ("utf-8", "utf_8", "utf8") else _whole().search_function(name)


def _whole():
    """CPython's own module, which replaces this one."""
    import _frozen_importlib, zipimport

    codecs.unregister(_find)
    return _frozen_importlib._load(zipimport.zipimporter(_ARCHIVE).find_spec("encodings"))


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_whole(), name)


codecs.register(_find)
