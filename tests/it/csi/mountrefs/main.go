// Mountrefs prints the other mounts of what is mounted at a path, as the kubelet finds them before it
// unstages a volume (GetDeviceMountRefs of its CSI plugin).
package main

import (
	"fmt"
	"os"

	"k8s.io/mount-utils"
)

func main() {
	refs, err := mount.New("").GetMountRefs(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, ref := range refs {
		fmt.Println(ref)
	}
}
