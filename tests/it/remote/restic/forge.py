"""Writes what no backup program would into a repository of restic's format: trees, contents and
snapshots as they are told, as JSON, on standard input.

[{"root": "t", "tree": TREE, ...more fields of the snapshot}, ...]
TREE: a list of nodes as restic has them. A node with "tree" is a directory of these; one with "text"
a file with this content, and "size" may say another one. {"subtree": "self"} at any depth: the tree above, by a number that is no hash of it.
{"levels": 20} in place of "tree": so many directories within each other, each of which has the next one twice.
{"bomb": KIND, "gib": 3}: what is stored as this "blob", "tree", "index", "snapshot" or "config" is so large when it is decompressed.
"""
import base64, hashlib, hmac, json, os, sys
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.poly1305 import Poly1305


def mac(key, nonce, text):
    s = Cipher(algorithms.AES(key["k"]), modes.ECB()).encryptor().update(nonce)
    return Poly1305.generate_tag(key["r"] + s, text)


def ctr(key, nonce, text):
    return Cipher(algorithms.AES(key["e"]), modes.CTR(nonce)).encryptor().update(text)


def seal(key, text):
    nonce = os.urandom(16)
    packed = ctr(key, nonce, text)
    return nonce + packed + mac(key, nonce, packed)


def unseal(key, sealed):
    nonce, packed = sealed[:16], sealed[16:-16]
    assert mac(key, nonce, packed) == sealed[-16:], "the password is wrong"
    return ctr(key, nonce, packed)


def zeros(gib):
    """What zstd has for zeros, by blocks of 128 KiB that are one byte, repeated."""
    blocks = gib << 13
    block = lambda last: (last | 1 << 1 | 128 << 10 << 3).to_bytes(3, "little") + b"\0"
    return bytes.fromhex("28b52ffd") + b"\0\x38" + block(0) * (blocks - 1) + block(1)


class Repository:
    def __init__(self, path, password):
        self.path = path
        name = os.listdir(os.path.join(path, "keys"))[0]
        stored = json.load(open(os.path.join(path, "keys", name)))
        derived = Scrypt(salt=base64.b64decode(stored["salt"]), length=64, n=stored["N"], r=stored["r"], p=stored["p"]).derive(password.encode())
        user = {"e": derived[:32], "k": derived[32:48], "r": derived[48:]}
        master = json.loads(unseal(user, base64.b64decode(stored["data"])))
        self.key = {"e": base64.b64decode(master["encrypt"]), "k": base64.b64decode(master["mac"]["k"]), "r": base64.b64decode(master["mac"]["r"])}
        self.blobs = []
        self.kind = self.bomb = None

    def blob(self, kind, text, number=None):
        number = number or hashlib.sha256(text).hexdigest()
        # Of a bomb the index says that it is as long as the text is.
        packed = self.bomb if kind == ("data" if self.kind == "blob" else self.kind) else None
        self.blobs.append((kind, number, text, packed))
        return number

    def put(self, kind, data):
        number = hashlib.sha256(data).hexdigest()
        dir = os.path.join(self.path, kind, number[:2]) if kind == "data" else os.path.join(self.path, kind)
        os.makedirs(dir, exist_ok=True)
        with open(os.path.join(dir, number), "wb") as out:
            out.write(data)
        return number

    def flush(self):
        packs = []
        for at in range(0, len(self.blobs), 4000):
          for wanted in ("tree", "data"):
            pack, header, listed = b"", b"", []
            for kind, number, text, packed in self.blobs[at:at + 4000]:
                if kind != wanted:
                    continue
                sealed = seal(self.key, packed or text)
                listed.append({"id": number, "type": kind, "offset": len(pack), "length": len(sealed), **({"uncompressed_length": len(text)} if packed else {})})
                header += bytes([(1 if kind == "tree" else 0) + (2 if packed else 0)]) + len(sealed).to_bytes(4, "little") + (len(text).to_bytes(4, "little") if packed else b"") + bytes.fromhex(number)
                pack += sealed
            if listed:
                header = seal(self.key, header)
                packs.append({"id": self.put("data", pack + header + len(header).to_bytes(4, "little")), "blobs": listed})
        self.put("index", seal(self.key, json.dumps({"packs": packs}).encode()))
        self.blobs = []

    def tree(self, nodes, number=None):
        made = []
        for node in nodes:
            node = dict(node)
            if "tree" in node:
                node["subtree"] = self.tree(node.pop("tree"), node.pop("number", None))
                node.setdefault("type", "dir")
            if "text" in node:
                text = node.pop("text").encode()
                node["content"] = [self.blob("data", text)]
                node.setdefault("size", len(text))
                node.setdefault("type", "file")
            made.append({"mode": 0o755 | (1 << 31 if node.get("type") == "dir" else 0), "mtime": "2026-01-01T00:00:00Z", "atime": "2026-01-01T00:00:00Z", "ctime": "2026-01-01T00:00:00Z", "uid": 0, "gid": 0, "user": "", "group": "", "inode": 0, "device_id": 0, "links": 1, **node})
        return self.blob("tree", json.dumps({"nodes": made}).encode() + b"\n", number)

    def levels(self, count):
        number = self.tree([{"name": "f", "text": "f"}])
        for _ in range(count):
            number = self.tree([{"name": name, "type": "dir", "subtree": number} for name in "ab"])
        return number

    def snapshot(self, told):
        told = dict(told)
        self.kind, self.bomb = told.pop("bomb", None), zeros(told.pop("gib", 0))
        if "levels" in told:
            told["top"] = [{"name": "t", "type": "dir", "subtree": self.levels(told.pop("levels"))}]
        root, number = told.pop("root", "t"), self.tree(told.pop("top"))  if "top" in told else None
        if number is None:
            number = self.tree([{"name": root, "type": "dir", "tree": told.pop("tree")}])
        tags = told.pop("tags", ["ckptfs", "store=0123456789abcdef0123456789abcdef", "checkpoint=1"])
        self.flush()
        bomb = seal(self.key, b"\x02" + self.bomb)
        if self.kind in ("index", "snapshot"):
            self.put({"index": "index", "snapshot": "snapshots"}[self.kind], bomb)
        if self.kind == "config":
            os.chmod(self.path + "/config", 0o600)
            open(self.path + "/config", "wb").write(bomb)
        made = {"time": "2026-01-01T00:00:00Z", "tree": number, "paths": ["/" + root], "hostname": "h", "username": "u", "tags": tags, **told}
        return self.put("snapshots", seal(self.key, json.dumps(made).encode()))


if __name__ == "__main__":
    repository = Repository(sys.argv[1], sys.argv[2])
    for told in json.load(sys.stdin):
        print(repository.snapshot(told))
