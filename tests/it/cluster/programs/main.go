// Node-sidecars does what two of the sidecars of docker/k8s do, which the module proxy does not have:
//
//	node-sidecars register SOCKET REGISTRATION   tells the kubelet of the driver at SOCKET
//	node-sidecars provision SOCKET NAMESPACE     makes volumes for claims and deletes them
//
// The second uses the library that the external-provisioner is made with. KUBECONFIG says who asks.
package main

import (
	"context"
	"log"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if len(os.Args) != 4 {
		log.Fatal("usage: node-sidecars register|provision SOCKET ARGUMENT")
	}
	connection, err := grpc.NewClient("unix://"+os.Args[2], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	must(err)
	switch os.Args[1] {
	case "register":
		must(register(info.GetName(), os.Args[2], os.Args[3]))
	case "provision":
		provision(info.GetName(), connection, os.Args[3])
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
