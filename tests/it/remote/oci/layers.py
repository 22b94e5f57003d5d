"""Makes an image of one layer one of COUNT, all the same, which still says that ckptfs pushed it: layers.py PORT NAME COUNT."""
import hashlib, json, sys, urllib.request

port, name, count = sys.argv[1:]
base = f"http://127.0.0.1:{port}/v2/{name}/"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def ask(method, url, data=None, **headers):
    request = urllib.request.Request(url, data, {key.replace("_", "-"): value for key, value in headers.items()}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read(), answer.headers


manifest = json.loads(ask("GET", base + "manifests/latest", Accept=MANIFEST)[0])
config = json.loads(ask("GET", base + "blobs/" + manifest["config"]["digest"])[0])
manifest["layers"] *= int(count)
config["rootfs"]["diff_ids"] *= int(count)
config["history"] *= int(count)
chain, *above = config["rootfs"]["diff_ids"]
for diff_id in above:
    chain = "sha256:" + hashlib.sha256(f"{chain} {diff_id}".encode()).hexdigest()
config["config"]["Labels"]["dev.ckptfs.chain"] = chain
data = json.dumps(config).encode()
digest = "sha256:" + hashlib.sha256(data).hexdigest()
place = ask("POST", base + "blobs/uploads/", b"")[1]["Location"]
ask("PUT", f"{place}&digest={digest}", data, Content_Type="application/octet-stream")
manifest["config"].update(digest=digest, size=len(data))
ask("PUT", base + "manifests/latest", json.dumps(manifest).encode(), Content_Type=MANIFEST)
