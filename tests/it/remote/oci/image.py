"""Writes an OCI layout with one image, tag `x`: image.py LAYOUT, the layers as JSON on stdin.

A layer is a list of entries {"name", "type", "data", "link", "mode", "pax", "major", "minor"}, or {"raw": BASE64, "diff_id"}.
"""
import base64, gzip, hashlib, io, json, os, sys, tarfile

TYPES = {"file": b"0", "link": b"1", "symlink": b"2", "char": b"3", "dir": b"5", "sparse": b"S"}


def packed(layer):
    if isinstance(layer, dict):
        raw = base64.b64decode(layer["raw"])
        return raw, layer.get("diff_id") or digest(raw)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:
        for entry in layer:
            info = tarfile.TarInfo(entry["name"])
            info.type = TYPES[entry.get("type", "file")]
            data = entry.get("data", "").encode()
            info.size, info.mode = len(data), entry.get("mode", 0o644)
            info.linkname = entry.get("link", "")
            info.devmajor, info.devminor = entry.get("major", 0), entry.get("minor", 0)
            info.pax_headers = entry.get("pax", {})
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), digest(buffer.getvalue())


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main(layout):
    os.makedirs(layout + "/blobs/sha256")

    def blob(data, kind):
        name = digest(data)
        with open(layout + "/blobs/sha256/" + name[7:], "wb") as out:
            out.write(data)
        return {"mediaType": "application/vnd.oci.image." + kind, "digest": name, "size": len(data)}

    layers, diff_ids = [], []
    for layer in json.load(sys.stdin):
        data, diff_id = packed(layer)
        layers.append(blob(gzip.compress(data), "layer.v1.tar+gzip"))
        diff_ids.append(diff_id)
    rootfs = {"type": "layers", "diff_ids": diff_ids}
    config = blob(json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": layers}
    top = dict(blob(json.dumps(manifest).encode(), "manifest.v1+json"), annotations={"org.opencontainers.image.ref.name": "x"})
    with open(layout + "/index.json", "w") as out:
        json.dump({"schemaVersion": 2, "manifests": [top]}, out)
    with open(layout + "/oci-layout", "w") as out:
        out.write('{"imageLayoutVersion": "1.0.0"}')


main(sys.argv[1])
