package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const (
	// For one call of the driver.
	callLimit = 60 * time.Second
	// How often the room on the node is looked at.
	capacityPeriod = 5 * time.Second
)

type provisioner struct {
	name      string
	driver    csi.ControllerClient
	cluster   kubernetes.Interface
	snapshots snapshots.Interface
}

var mounted = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

// Provision makes the volume of a claim.
func (p *provisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*core.PersistentVolume, controller.ProvisioningState, error) {
	source, err := p.source(ctx, options.PVC)
	if err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	wanted := options.PVC.Spec.Resources.Requests[core.ResourceStorage]
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	made, err := p.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:                options.PVName,
		CapacityRange:       &csi.CapacityRange{RequiredBytes: wanted.Value()},
		VolumeCapabilities:  []*csi.VolumeCapability{mounted},
		Parameters:          options.StorageClass.Parameters,
		VolumeContentSource: source,
		AccessibilityRequirements: &csi.TopologyRequirement{
			Requisite: []*csi.Topology{topologyOf(p.name, options.SelectedNodeName)},
		},
	})
	switch status.Code(err) {
	case codes.OK:
		return volumeFor(p.name, options, made.GetVolume(), wanted), controller.ProvisioningFinished, nil
	case codes.ResourceExhausted:
		return nil, controller.ProvisioningReschedule, err
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return nil, controller.ProvisioningInBackground, err
	}
	return nil, controller.ProvisioningFinished, err
}

// Delete deletes the volume of a claim that is gone.
func (p *provisioner) Delete(ctx context.Context, volume *core.PersistentVolume) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := p.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume.Spec.CSI.VolumeHandle})
	return err
}

// source tells what a claim begins with.
func (p *provisioner) source(ctx context.Context, claim *core.PersistentVolumeClaim) (*csi.VolumeContentSource, error) {
	from := claim.Spec.DataSource
	if from == nil {
		return nil, nil
	}
	if from.Kind == "PersistentVolumeClaim" {
		claim, err := p.cluster.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, from.Name, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		volume, err := p.cluster.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		id := volume.Spec.CSI.VolumeHandle
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}, nil
	}
	snapshot, err := p.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, from.Name, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	if snapshot.Status == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse {
		return nil, fmt.Errorf("snapshot %s is not ready", from.Name)
	}
	content, err := p.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, *snapshot.Status.BoundVolumeSnapshotContentName, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	id := *content.Status.SnapshotHandle
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}, nil
}

// volumeFor says to the cluster what was made.
func volumeFor(name string, options controller.ProvisionOptions, made *csi.Volume, wanted resource.Quantity) *core.PersistentVolume {
	size := wanted
	if made.GetCapacityBytes() > 0 {
		size = *resource.NewQuantity(made.GetCapacityBytes(), resource.BinarySI)
	}
	var terms []core.NodeSelectorTerm
	for _, topology := range made.GetAccessibleTopology() {
		var term core.NodeSelectorTerm
		for key, value := range topology.GetSegments() {
			term.MatchExpressions = append(term.MatchExpressions, core.NodeSelectorRequirement{Key: key, Operator: core.NodeSelectorOpIn, Values: []string{value}})
		}
		terms = append(terms, term)
	}
	return &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity:                      core.ResourceList{core.ResourceStorage: size},
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			NodeAffinity:                  &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: terms}},
			PersistentVolumeSource: core.PersistentVolumeSource{CSI: &core.CSIPersistentVolumeSource{
				Driver: name, VolumeHandle: made.GetVolumeId(), VolumeAttributes: made.GetVolumeContext(),
			}},
		},
	}
}

func provision(name string, connection *grpc.ClientConn, namespace string) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err)
	cluster, err := kubernetes.NewForConfig(config)
	must(err)
	asks, err := snapshots.NewForConfig(config)
	must(err)
	p := &provisioner{name: name, driver: csi.NewControllerClient(connection), cluster: cluster, snapshots: asks}
	go func() {
		for ; ; time.Sleep(capacityPeriod) {
			if err := p.tellCapacity(context.Background(), namespace); err != nil {
				log.Print("capacity: ", err)
			}
		}
	}()
	retries := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 5*time.Second)
	made := controller.NewProvisionController(context.Background(), cluster, name, p,
		controller.LeaderElection(false), controller.AddFinalizer(true), controller.RateLimiter(retries),
		controller.FailedProvisionThreshold(0), controller.FailedDeleteThreshold(0), controller.ResyncPeriod(20*time.Second))
	made.Run(context.Background())
}
